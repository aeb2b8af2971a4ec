"""The commands of ``subquant``, one file each, and what they share."""
