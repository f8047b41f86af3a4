"""Campaigns: grids of replays in a folder that any number of workers and machines share; and those that ship."""
