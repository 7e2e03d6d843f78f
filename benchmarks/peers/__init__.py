"""Recpool beside other servers: the same release, candidate counts and answers, one load generator, one machine."""
