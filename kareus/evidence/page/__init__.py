"""The page of `kareus validate`: every file predicted against measured, errors, what not to trust."""
