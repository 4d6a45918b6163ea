"""What vendors sell: devices, the nodes they come in, links and their rates, rented instances."""
