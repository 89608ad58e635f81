"""Parts of a reply in the loss: thought, state, answer, and tags of the user."""
