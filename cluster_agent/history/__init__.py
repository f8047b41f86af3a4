"""What has each job done, in counters, watts and time? Written as jobs end, read by predictions and by people."""
