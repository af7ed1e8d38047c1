"""Commands and integrations beside the core; each folder can be deleted without another edit."""
