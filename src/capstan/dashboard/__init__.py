"""The dashboard at `/dashboard`: pages for the people of an account and for the operator."""
