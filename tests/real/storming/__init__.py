"""A storm of notices on real parts, measured beside the least that it could take."""
