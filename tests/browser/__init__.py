"""A real headless browser for tests of pages, and npm for whatever else runs in Node.js."""
