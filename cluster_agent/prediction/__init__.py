"""The power of a job, predicted from its submission alone and learned as jobs end."""
