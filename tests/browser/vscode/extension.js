// Opens /hosts.ipynb of the server that this extension comes from.
const vscode = require("vscode");

exports.activate = async context => {
    const source = vscode.Uri.joinPath(context.extensionUri, "../hosts.ipynb");
    const content = await (await fetch(source.toString(true))).arrayBuffer();
    const notebook = vscode.Uri.parse("tmp:/hosts.ipynb");
    await vscode.workspace.fs.writeFile(notebook, new Uint8Array(content));
    await vscode.commands.executeCommand("vscode.openWith", notebook, "jupyter-notebook");
};
