"""The three hottest items of the last hour, every five minutes: sliding windows, then the top of each."""
