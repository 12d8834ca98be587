"""`guild serve`: a model for many clients at once, in the forms that they already speak."""
