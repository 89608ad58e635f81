"""Users, scripted or played by a model, who know what the task leaves out."""
