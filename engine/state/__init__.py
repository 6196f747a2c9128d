"""Key groups and the key hash; heap, columnar and RocksDB backends; TTL."""
