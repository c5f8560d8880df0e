"""A conversation that people stay in: turns, sessions, and the prompt they are typed at."""
