"""The forwards of trained heads, which draft from a model's states."""
