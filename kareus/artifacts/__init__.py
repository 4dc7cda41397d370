"""Reading and writing of artifacts: records, tables, provenance, atomic files, the durable store."""
