"""The libraries behind `kareus.model.communication.Communicator`, one module each."""
