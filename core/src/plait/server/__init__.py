"""The HTTP server: the routes of OpenAI's API that complete texts and chats, health and metrics."""
