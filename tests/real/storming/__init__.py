"""A storm of notices on real parts, compared with the least that it could take."""
