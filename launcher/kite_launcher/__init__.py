"""The launcher: starts, keeps and stops the processes of one instance, and leaves nothing behind."""
