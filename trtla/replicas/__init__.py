"""One model in several processes: replicas on Ray, behind the same server and batch commands."""
