"""The stock module `chat`: conversations with one owner at a time, answers that survive their replica."""
