// Style sheets are bundled into canvas.css.
declare module "*.css";
