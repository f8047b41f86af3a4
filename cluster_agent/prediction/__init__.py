"""What a job will draw, from its submission alone, learned as jobs end."""
