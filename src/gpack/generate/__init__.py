"""Text from a model: sampling, endings, one text token by token."""
