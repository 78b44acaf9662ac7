"""Every metric, its labels and buckets; snapshots of a process; the hub that merges all of them."""
