"""Time that the engine itself takes of the host, beside the functions that it launches."""
