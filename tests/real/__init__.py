"""Over pretrained models: `make test-real`. `fetch` puts them at build/real-pair."""
