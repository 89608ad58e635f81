"""Replies chosen by the values of a critic in evaluations, and a critic of proposed actions in a tree search."""
