"""Speed: what the engine costs and gains, measured on this machine and not part of the tests."""
