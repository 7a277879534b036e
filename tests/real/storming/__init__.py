"""A storm of notices on real parts, compared with a minimal client."""
