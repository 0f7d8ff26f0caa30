// Renders the description of the API. A key that is typed under Authorize is kept in this page's memory alone and is gone
// when the page is: it is never stored, and requests go to this service only.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#viewer",
  deepLinking: true,
  docExpansion: "none",
  filter: true,
  persistAuthorization: false,
  validatorUrl: null,
});
