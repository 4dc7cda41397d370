"""What every stage reads and writes with: records, tables, provenance, atomic files, the durable store."""
