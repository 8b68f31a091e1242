// The start page: commands have the address of this server.
for (const origin of document.querySelectorAll(".origin")) origin.textContent = location.origin;
