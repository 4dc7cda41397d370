"""The software that trains: what it launches, what it runs beside what, and how its host keeps up with the GPU."""
