"""Training of agent programs through a chat endpoint (``env=program``)."""
