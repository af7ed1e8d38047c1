"""One model in several processes: replicas on Ray, behind the server or the batch that is here."""
