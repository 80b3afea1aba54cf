"""Topics by Amazon SNS's protocol: the parts that need no store, no engine and no network."""
