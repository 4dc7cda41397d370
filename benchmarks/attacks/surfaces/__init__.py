"""What workers fuzz. Each module has `prepare(folder, seed)`, which returns a function from a number to what failed."""
