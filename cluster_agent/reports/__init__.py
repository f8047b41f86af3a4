"""Reports of replays: how large an effect is and how sure, its pictures, the page and the figures for a paper."""
