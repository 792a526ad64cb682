"""Types: what a column becomes in Connect, JSON and Arrow; a column of a plugin's type as well."""
