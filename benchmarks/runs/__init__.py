"""Running the workflow in copies of the repository's folders: undisturbed, killed, and measured."""
