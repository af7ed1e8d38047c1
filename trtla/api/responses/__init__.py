"""OpenAI's Responses API: its bodies and answers around those of a chat; read when it is asked."""
