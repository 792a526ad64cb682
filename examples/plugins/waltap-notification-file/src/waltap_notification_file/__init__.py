"""A notification channel for waltap."""
