"""What commands report: metrics, JSON documents, the environment they were measured in."""
