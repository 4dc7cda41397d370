"""What a person looks at: the summary in the terminal, and one page that needs nothing but a browser."""
