"""The stock module `model`: one method, `model.generate`, in front of a language model."""
