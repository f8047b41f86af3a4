"""The commands of ``clusterctl`` that need no running agent: replays of job logs, campaigns and reports."""
