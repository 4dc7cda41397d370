"""The page of the adviser."""
